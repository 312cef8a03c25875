CREATE EXTENSION vector;
CREATE TABLE public.points (id int PRIMARY KEY, v vector(3), h halfvec(2), s sparsevec(5), many vector, required vector(2) NOT NULL DEFAULT '[1,2]', rs sparsevec(3) NOT NULL DEFAULT '{2:1}/3', rh halfvec NOT NULL, va vector[], sa sparsevec[], ha halfvec[]);
ALTER TABLE public.points REPLICA IDENTITY FULL;
CREATE TABLE public.keyed (v vector(2) PRIMARY KEY, t text);
CREATE DOMAIN public.place AS vector(2);
CREATE TABLE public.placed (id int PRIMARY KEY, p public.place);
INSERT INTO public.points (id, v, h, s, rh) VALUES (0, '[1,2,3]', '[0.1,1]', '{1:1}/5', '[3]');
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
