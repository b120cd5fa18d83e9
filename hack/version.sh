# Sourced by what builds programs for others. Sets version, commit, date, and ldflags for the linker.

if commit=$(git rev-parse HEAD 2>/dev/null); then
	version=${VERSION:-$(git describe --tags --match 'v[0-9]*' --always --dirty)}
	# The time of the commit, so that the same commit makes the same files.
	date=$(TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
else
	# An unpacked archive knows nothing of commits.
	version=${VERSION:-devel}
	commit='' date=''
fi
package=github.com/rowkeeper/rowkeeper/pkg/support/version
ldflags="-s -w -X $package.version=$version -X $package.gitCommit=$commit -X $package.buildDate=$date"
