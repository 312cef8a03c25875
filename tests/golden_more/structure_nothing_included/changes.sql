-- changes
INSERT INTO people VALUES ('l', 'hellö', NULL, 7);
