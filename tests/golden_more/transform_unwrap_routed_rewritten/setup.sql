CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL DEFAULT 'nn', town text DEFAULT 'here', note text);
CREATE TABLE whole (id int PRIMARY KEY, town text DEFAULT 'here', name text NOT NULL DEFAULT 'nn'); ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
