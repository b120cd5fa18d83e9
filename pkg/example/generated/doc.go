// Package generated holds what hack/update-codegen.sh writes outside of the API types' own packages.
package generated
