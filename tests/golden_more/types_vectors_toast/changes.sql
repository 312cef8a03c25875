INSERT INTO public.large SELECT 1, 1, array_fill(1.5, '{700}')::real[]::vector, array_fill(1.5, '{1100}')::real[]::halfvec, ARRAY[array_fill(1.5, '{700}')::real[]::vector];
UPDATE public.large SET n = 2;
DELETE FROM public.large;
