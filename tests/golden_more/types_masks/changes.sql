-- changes
INSERT INTO masked VALUES ('key','secret','väl😀ue','ch','ddd','',ARRAY['secret','x'],'{"a": 1}','{"a": 1}',42,1.5,'2020-01-01','\xff','a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11','1.2.3.4','2020-01-01 00:00:00+00',true,'ok','nm','c','1 day','{abc}');
INSERT INTO masked (k,d) VALUES ('k2','x'); UPDATE masked SET a='n', k=k||'9'; DELETE FROM masked;
INSERT INTO masked2 VALUES ('key','secret','value','ch','ddd',NULL); UPDATE masked2 SET a='q'; UPDATE masked2 SET k='longer key'; DELETE FROM masked2;
