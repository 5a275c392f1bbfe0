SELECT count(*) FILTER (WHERE l.owner IS NOT NULL) AS owned,
       count(*) FILTER (WHERE l.owner IS NULL AND l.ticket IS NOT NULL) AS due,
       count(*) FILTER (WHERE l.owner IS NULL AND l.ticket IS NULL) AS cold
FROM continuum_leases l
