# An image of Perigee on CPUs: `docker build -t perigee .`, then
#   docker run --rm -v "$PWD:/work" perigee quickstart
# The first stage builds the Debian package, the second installs it.
FROM debian:12 AS build
COPY . /perigee
WORKDIR /perigee
RUN cp "$(launch/package.sh)" /perigee.deb

FROM debian:12-slim
COPY --from=build /perigee.deb /tmp/perigee.deb
RUN apt-get update && \
    apt-get install --yes --no-install-recommends /tmp/perigee.deb openmpi-bin && \
    rm -rf /tmp/perigee.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["perigee"]
