CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE texts (id int PRIMARY KEY, v tsvector, w tsvector NOT NULL DEFAULT 'a:1', a tsvector[]);
ALTER TABLE texts REPLICA IDENTITY FULL;
ALTER TABLE texts ALTER v SET STORAGE EXTERNAL;
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
INSERT INTO texts VALUES (1, 'fat:2,4 cat:3A', 'b', '{a,b}'), (2, NULL, DEFAULT, NULL);