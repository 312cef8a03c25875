-- changes
BEGIN;
UPDATE people SET name = 'y' WHERE id = 'a';
UPDATE people SET id = 'c' WHERE id = 'b';
COMMIT;
BEGIN;
INSERT INTO people VALUES ('d', 'x', NULL, 1);
TRUNCATE people;
INSERT INTO people VALUES ('e', 'x', NULL, 1);
COMMIT;
DELETE FROM people;
