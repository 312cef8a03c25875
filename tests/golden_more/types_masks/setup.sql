-- setup
CREATE TABLE masked (k text PRIMARY KEY, a text, b varchar(20), c char(8), d text NOT NULL, e text, f text[], g json, h jsonb, i int, j numeric, l date, m bytea, n uuid, o inet, p timestamptz, q boolean); ALTER TABLE masked REPLICA IDENTITY FULL;
CREATE TABLE masked2 (k text PRIMARY KEY, a text, b varchar(20), c char(8), d text NOT NULL, e text);CREATE TYPE mood AS ENUM ('ok'); ALTER TABLE masked ADD en mood, ADD nm name, ADD ch "char", ADD iv interval, ADD va varchar(5)[];
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
