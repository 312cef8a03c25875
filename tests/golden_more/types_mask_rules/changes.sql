-- changes
INSERT INTO chars VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO keyed VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO hashed VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO hashed2 VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO cut VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO cut10 VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO rules VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO pairs VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO typed VALUES ('kk', 'hellö', NULL, 7), ('k2', 'a😀b', 'note', 2);
INSERT INTO short VALUES ('x');
UPDATE keyed SET id = 'two' WHERE id = 'kk';
DELETE FROM chars;
INSERT INTO rules VALUES ('longer', 'a', 'b', 2);
