CREATE EXTENSION hstore;
CREATE DOMAIN d_hstore AS hstore;
CREATE DOMAIN d_int AS int;
CREATE DOMAIN d_text AS text;
CREATE DOMAIN d_texts AS text[];
CREATE TABLE domains (id int PRIMARY KEY, n int, pairs d_hstore, ints d_int[], texts d_text[], list d_texts, plain d_text, known hstore);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
