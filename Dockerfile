# docker build -t pgcdc . - see "In a container" in docs/metrics.md
FROM python:3.13-slim AS build
ARG EXTRAS=metrics
COPY . /source
RUN python -m venv /opt/pgcdc && /opt/pgcdc/bin/pip install --no-cache-dir "/source[$EXTRAS]"

FROM python:3.13-slim
COPY --from=build /opt/pgcdc /opt/pgcdc
# By number, so that Kubernetes can tell that it is not root.
RUN useradd --uid 10001 --create-home pgcdc && install -d -o pgcdc -g pgcdc -m 0700 /data
ENV PATH=/opt/pgcdc/bin:$PATH
USER 10001
WORKDIR /data
VOLUME /data
ENTRYPOINT ["pgcdc"]
CMD ["--help"]
