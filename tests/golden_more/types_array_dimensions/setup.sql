CREATE EXTENSION citext;
CREATE EXTENSION ltree;
CREATE EXTENSION hstore;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE addr AS (n int, s text);
CREATE DOMAIN d_int AS int;
CREATE DOMAIN d_text AS text;
CREATE TABLE arrays (
    id int PRIMARY KEY,
    c0 text[],
    c1 jsonb[],
    c2 uuid[],
    c3 inet[],
    c4 cidr[],
    c5 macaddr[],
    c6 macaddr8[],
    c7 int4range[],
    c8 tstzrange[],
    c9 mood[],
    c10 ltree[],
    c11 citext[],
    c12 int[],
    c13 numeric[],
    c14 numeric(5,2)[],
    c15 numeric[],
    c16 tsvector[],
    c17 xid[],
    c18 box[],
    c19 int4multirange[],
    c20 addr[],
    c21 d_int[],
    c22 d_text[],
    c23 oidvector[],
    c24 text[],
    c25 hstore[],
    c26 date[]
);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
