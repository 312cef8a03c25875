INSERT INTO cut VALUES (1, 'abcdef', 'ghijkl', 'xy', '\x00010203040506', '\xffeeddccbbaa', repeat('10',20)::bit(40), repeat('1',50)::varbit, 12345678.9, 12.5, '[1,5)', '(1,1),(0,0)', '(1,2)', '{abcdef}', '{"\\x0001020304"}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": 1}', repeat('e', 3000), 'a & b', 'a b', '{"<(1,2),3>"}');
INSERT INTO cut (id) VALUES (2); INSERT INTO cut (id, t, by, e) VALUES (3, repeat('long', 1000), decode(repeat('00ff', 2000), 'hex'), repeat('e', 3000)); UPDATE cut SET v = 'z'; DELETE FROM cut WHERE id = 3;
INSERT INTO cut (id, by, bn) VALUES (4, '', '\x01');
INSERT INTO none VALUES (1, 'abc', '\x0102', '\x01', '(1,1),(0,0)'); UPDATE none SET t = ''; UPDATE none SET id = 2; DELETE FROM none;
