SELECT version, checksum FROM continuum_migrations ORDER BY version
