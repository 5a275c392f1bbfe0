SELECT EXISTS (SELECT 1 FROM continuum_events_default)
