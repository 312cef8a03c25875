INSERT INTO people (id, town) VALUES (1, 'york'), (2, NULL), (3, '  '); INSERT INTO people (id) VALUES (4);
UPDATE people SET note = 'x'; UPDATE people SET town = NULL WHERE id = 1; UPDATE people SET id = 50 WHERE id = 2; DELETE FROM people WHERE id < 4;
INSERT INTO whole VALUES (1, NULL), (2, 'york'); UPDATE whole SET id = id + 10; DELETE FROM whole;
INSERT INTO people (id, town) SELECT g, CASE g % 3 WHEN 0 THEN 'york' WHEN 1 THEN NULL ELSE '' END FROM generate_series(100, 140) g; DELETE FROM people;
