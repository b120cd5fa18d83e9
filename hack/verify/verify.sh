#!/bin/bash
# Usage: hack/verify/verify.sh MODULE…
#
# Checks, without changing a file, that all code is formatted and comments have at most 100 columns,
# that the modules are tidy, that the library and the program have no replace directive, that the
# library requires no tools and no program, that workflows name actions by commit, that documents
# show database URLs with verified TLS, that the page of "rowkeeper ui" is what its source makes,
# that the library exports what hack/verify/api/api.txt says, and that generated code is up to date.
set -uo pipefail
cd "$(dirname "$0")/../.."
export GOWORK=off

status=0
fail() {
	echo "verify: $1" >&2
	status=1
}

files=$(find . -name '*.go' -not -path './bin/*' -exec gofmt -s -l {} +)
[ -z "$files" ] || fail "not formatted, run make fmt: $files"

# Comments are prose. Markers, and what is indented in them, cannot be broken.
wide=$(find . \( -name '*.go' -o -name '*.sql' \) -not -path './bin/*' -not -name 'zz_generated*' -not -path '*/generated/*' -exec awk '
	/^[\t ]*(\/\/|--) [^ \t+]/ { line = $0; gsub(/\t/, "    ", line); if (length(line) > 100) print FILENAME ":" FNR }' {} +)
[ -z "$wide" ] || fail "comments of more than 100 columns: $wide"

hack/tidy.sh -diff "$@" || fail "the modules above are not tidy, run make tidy"

for module in . cmd/rowkeeper; do
	if go mod edit -json $module/go.mod | grep -q '"Replace": \['; then fail "$module/go.mod has a replace directive, with which go install refuses it"; fi
done
for module in k8s.io/kubernetes sigs.k8s.io/controller-runtime k8s.io/sample-apiserver github.com/golangci/golangci-lint/v2 github.com/testcontainers/testcontainers-go github.com/moby/moby/client; do
	if go mod edit -json | grep -q "\"Path\": \"$module\""; then fail "go.mod requires $module, which belongs into a module of its own"; fi
done

# A tag can be moved, and would bring another action.
loose=$(grep -rn 'uses: ' .github cmd/rowkeeper/app/scaffold/templates | grep -vE '@[0-9a-f]{40}( |$)')
[ -z "$loose" ] || fail "actions that are not named by commit: $loose"

# Readers copy URLs, and a program without these parameters sends the password to whoever answers.
plain=$(grep -rnoE '(postgres|postgresql|mysql|mariadb)://[a-z]+(:[^@ ]*)?@[a-z0-9.-]+[:/][^ `"'"'"')]*' README.md docs deploy \
	| grep -vE '@(localhost|127\.0\.0\.1)[:/]|sslmode=verify-full|tls=true')
[ -z "$plain" ] || fail "database URLs without sslmode=verify-full or tls=true: $plain"

hack/verify/ui.sh || fail "the page of rowkeeper ui is not what its source makes"

go run ./hack/verify/api || fail "the exported API is not what hack/verify/api/api.txt says"

# The generators write into a copy.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar --exclude=./.git --exclude=./bin --exclude=./.rowkeeper --exclude=node_modules -c . | tar -x -C "$copy"
if ! (cd "$copy" && hack/verify/codegen.sh) >"$copy/codegen.log" 2>&1; then
	tail -n 60 "$copy/codegen.log" >&2
	fail "generated code is not up to date, or the generators fail; run make generate"
fi
exit $status
