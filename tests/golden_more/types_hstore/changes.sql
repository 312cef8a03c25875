-- changes
INSERT INTO stores VALUES (1,'"a b"=>"c,d", q=>NULL, "=>"=>"=>", "\\"=>"\"", "NULL"=>"NULL", z=>"", smile=>"😀"',ARRAY['a=>1'::hstore,NULL,'']);
INSERT INTO stores SELECT 2, hstore(array_agg('k'||g),array_agg(g::text)), NULL, NULL FROM generate_series(1,40) g;
INSERT INTO stores SELECT 3, hstore(array_agg(chr(g)),array_agg(chr(g))), '{}' FROM generate_series(1,200) g;
UPDATE stores SET k=k+10;
DELETE FROM stores WHERE k=11;
