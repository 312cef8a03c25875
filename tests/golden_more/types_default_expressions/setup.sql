-- setup
CREATE SCHEMA s2;
CREATE FUNCTION s2.f(text) RETURNS text LANGUAGE sql AS 'SELECT $1';
CREATE SCHEMA other;
CREATE TYPE state AS ENUM ('new', 'it''s');
CREATE TYPE other.state AS ENUM ('new');
CREATE TABLE expressions (
    k int PRIMARY KEY,
    c0 jsonb DEFAULT jsonb_build_object('a', 1),
    c1 timestamp DEFAULT now() - '1 day'::interval,
    c2 text DEFAULT s2.f('a'::text),
    c3 date DEFAULT CURRENT_DATE,
    c4 date DEFAULT CURRENT_DATE - 1,
    c5 timestamp DEFAULT CURRENT_TIMESTAMP + '1 day'::interval,
    c6 timestamptz DEFAULT CURRENT_TIMESTAMP - '01:00:00'::interval,
    c7 int DEFAULT 1 + 1,
    c8 text DEFAULT (1 + 1),
    c9 text DEFAULT 'x'::text || 'y'::text,
    c10 bool DEFAULT 5 > 3,
    c11 text DEFAULT E'a\nb',
    c12 text DEFAULT 'it''s',
    c13 text DEFAULT NULL::text,
    c14 numeric(6,1) DEFAULT 1.50,
    c15 numeric(6,1) DEFAULT 0.25,
    c16 numeric(6,1) DEFAULT 'NaN'::numeric,
    c17 numeric DEFAULT 1.5,
    c18 point DEFAULT '(1,2)'::point,
    c19 oid DEFAULT 5,
    c20 "char" DEFAULT 'c'::"char",
    c21 timetz DEFAULT '10:11:12+02'::timetz,
    c22 int4range DEFAULT '[1,3)'::int4range,
    c23 date DEFAULT 'infinity'::date,
    c24 date DEFAULT '-infinity'::date,
    c25 timestamp DEFAULT 'infinity'::timestamp,
    c26 timestamp(3) DEFAULT 'infinity'::timestamp,
    c27 timestamptz DEFAULT 'infinity'::timestamptz,
    c28 time DEFAULT '24:00:00'::time,
    c29 time(0) DEFAULT '24:00:00'::time,
    c30 bit(4) DEFAULT B'0'::"bit" || B'111'::"bit",
    c31 bit(4) DEFAULT 1::bit(4),
    c32 bit(1) DEFAULT 1::bit(1),
    c33 bit(1) DEFAULT B'1',
    c34 real DEFAULT 16777217,
    c35 real DEFAULT 'NaN'::real,
    c36 uuid DEFAULT 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::text::uuid,
    c37 state DEFAULT 'new',
    c38 state DEFAULT 'it''s',
    c39 other.state DEFAULT 'new',
    c40 state DEFAULT ('ne'::text || 'w'::text)::state,
    c41 date DEFAULT '0044-03-15 BC'::date
);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
