CREATE TABLE cut (id int PRIMARY KEY, t text, tn text NOT NULL DEFAULT 'abcdef', v varchar(2), by bytea, bn bytea NOT NULL DEFAULT '\x0102030405', bits bit(40), vb varbit, n numeric(20,2), m money, r int4range, box box, p point, a text[], ba bytea[], uu uuid, j jsonb, e text, x tsquery, ts tsvector, c circle[]);
ALTER TABLE cut ALTER by SET STORAGE EXTERNAL, ALTER t SET STORAGE EXTERNAL, ALTER e SET STORAGE EXTERNAL;
CREATE TABLE none (id int PRIMARY KEY, t text NOT NULL, b bytea, bn bytea NOT NULL, q box);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
