-- setup
CREATE TABLE chars (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE TABLE keyed (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE TABLE hashed (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE TABLE hashed2 (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE TABLE cut (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE TABLE cut10 (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE TABLE rules (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE TABLE pairs (id text PRIMARY KEY, name text NOT NULL, note text, number int);
ALTER TABLE keyed REPLICA IDENTITY FULL;
CREATE TABLE short (id varchar(5) PRIMARY KEY);
CREATE TABLE typed (id text PRIMARY KEY, name text NOT NULL, note text, number int);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
