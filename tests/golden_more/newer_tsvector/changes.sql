INSERT INTO texts VALUES (1, 'fat:2,4 cat:3A ''it''''s''', 'b', '{a,b}'), (2, NULL, DEFAULT, NULL), (3, '', '', '{}'), (4, (SELECT string_agg('word' || n, ' ')::tsvector FROM generate_series(1, 900) n), 'x', NULL);
UPDATE texts SET w = 'é:1' WHERE id = 4;
UPDATE texts SET v = 'new' WHERE id = 1;
DELETE FROM texts;
