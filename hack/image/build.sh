#!/bin/bash
# Usage: [VERSION=v1.2.3] [ARCHITECTURES="amd64 arm64"] hack/image/build.sh
#
# Builds the program, statically, for each architecture, and makes the container image of it, in bin/image. It needs no container engine.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/version.sh

programs=()
for arch in ${ARCHITECTURES:-amd64 arm64}; do
	program=bin/image/linux-$arch/rowkeeper
	GOWORK='' CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -ldflags "$ldflags" -o "$program" ./cmd/rowkeeper
	programs+=("$PWD/$program")
done
GOWORK=off go run -C hack/image . -version "$version" -revision "$commit" -created "$date" -out "$PWD/bin/image" "${programs[@]}"
