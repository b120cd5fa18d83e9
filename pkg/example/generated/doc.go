// Package generated holds what hack/codegen/update.sh writes outside of the API types' own packages.
package generated
