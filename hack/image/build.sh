#!/bin/bash
# Usage: [VERSION=v1.2.3] [ARCHITECTURES="amd64 arm64"] hack/image/build.sh
#
# Builds the program, statically, for each architecture, and makes the container image of it, in bin/image. It needs no container engine.
set -euo pipefail
cd "$(dirname "$0")/../.."

if commit=$(git rev-parse HEAD 2>/dev/null); then
	version=${VERSION:-$(git describe --tags --always --dirty)}
	# The time of the commit, so that the same commit makes the same image.
	date=$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
else
	# An unpacked archive knows nothing of commits.
	version=${VERSION:-devel}
	commit='' date=''
fi
package=github.com/rowkeeper/rowkeeper/pkg/server/version

programs=()
for arch in ${ARCHITECTURES:-amd64 arm64}; do
	program=bin/image/linux-$arch/rowkeeper
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath \
		-ldflags "-s -w -X $package.version=$version -X $package.gitCommit=$commit -X $package.buildDate=$date" -o "$program" ./cmd/rowkeeper
	programs+=("$PWD/$program")
done
go run -C hack/image . -version "$version" -revision "$commit" -created "$date" -out "$PWD/bin/image" "${programs[@]}"
