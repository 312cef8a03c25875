-- setup
CREATE EXTENSION hstore; CREATE TABLE stores (k int PRIMARY KEY, a hstore NOT NULL, b hstore[], c hstore DEFAULT 'x=>y');
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
