ALTER TABLE domains ALTER pairs SET STORAGE EXTERNAL, ALTER ints SET STORAGE EXTERNAL, ALTER texts SET STORAGE EXTERNAL, ALTER list SET STORAGE EXTERNAL, ALTER plain SET STORAGE EXTERNAL, ALTER known SET STORAGE EXTERNAL, SET (toast_tuple_target = 128);
INSERT INTO domains VALUES (1, 1, hstore('k', repeat('x', 450)), array_fill(7, ARRAY[120])::d_int[], ARRAY[repeat('x', 450)]::d_text[], ARRAY[repeat('x', 450)], repeat('x', 450), hstore('k', repeat('x', 450)));
UPDATE domains SET n = 2;
