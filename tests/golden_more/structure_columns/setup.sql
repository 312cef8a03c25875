CREATE TABLE t (id int PRIMARY KEY, a text, "B" text, "c d" text, aa text NOT NULL DEFAULT 'q', z int);
CREATE TABLE u (x int, id int, y text, PRIMARY KEY (id, x)); CREATE TABLE t2 (id int PRIMARY KEY, a text);
CREATE TABLE v (id int PRIMARY KEY, a text); INSERT INTO t VALUES (9,'a','b','cd','aa',3); INSERT INTO u VALUES (9,9,'y'); INSERT INTO t2 VALUES (9,'a');
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
