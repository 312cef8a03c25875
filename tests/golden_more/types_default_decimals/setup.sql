-- setup
CREATE TABLE decimals (k int PRIMARY KEY, a numeric(8,2) DEFAULT round(1.234, 2), b numeric(8,2) DEFAULT 1.5);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
