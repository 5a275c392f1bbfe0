SELECT version FROM continuum_migrations WHERE success ORDER BY version
