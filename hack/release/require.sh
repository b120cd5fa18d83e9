#!/bin/bash
# Usage: hack/release/require.sh v0.1.0
#
# Writes the version of the next release into the modules of which it consists. The program requires
# the definitions and the library, and the definitions require the library: all have one version.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=$1
library=github.com/rowkeeper/rowkeeper
go mod edit -require "$library@$version" -require "$library/pkg/crds@$version" cmd/rowkeeper/go.mod
go mod edit -require "$library@$version" pkg/crds/go.mod
sed -i "s|^\(replace $library/pkg/crds\) v[^ ]*|\1 $version|" go.work
