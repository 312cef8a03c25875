-- changes
INSERT INTO days VALUES (2, NULL);
