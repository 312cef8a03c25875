INSERT INTO public.wide VALUES (1, '{1:1}/40000');
INSERT INTO public.wide VALUES (2, '{1:1}/32767');
INSERT INTO public.wide VALUES (3, '{40000:1}/50000');
INSERT INTO public.wide VALUES (4, '{}/3');
INSERT INTO public.narrow VALUES (1);
