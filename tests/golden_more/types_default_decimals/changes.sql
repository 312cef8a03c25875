-- changes
INSERT INTO decimals VALUES (1, NULL, NULL);
