#!/bin/bash
# Usage: [VERSION=v0.1.0] [PLATFORMS="darwin/arm64 windows/amd64"] [ARCHITECTURES="amd64 arm64"] hack/release/build.sh
#
# Builds what a release consists of, in bin/release: the program for each platform, the container image, the manifests as one file, the chart, a
# bill of materials, and the checksums of all of them. It publishes nothing. PLATFORMS are those beside Linux, and ARCHITECTURES those of Linux,
# which the image is built for, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/version.sh
export GOWORK=off

out=bin/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf $out
mkdir -p $out

# pack FILE.tar.gz DIRECTORY: the same content makes the same file.
pack() {
	tar --sort=name --mtime="${date:-@0}" --owner=0 --group=0 --numeric-owner --mode=go=u-w -C "$2" -cf - . | gzip -n9 >"$out/$1"
}

VERSION=$version hack/image/build.sh
# The manifests name the image by its digest, since a tag can be moved.
tag=${version//+/-}@$(cat bin/image/digest)
pack "rowkeeper_${version}_image.tar.gz" bin/image/oci

platforms=()
for arch in ${ARCHITECTURES:-amd64 arm64}; do platforms+=("linux/$arch"); done
for platform in ${PLATFORMS-darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}; do
	platforms+=("$platform")
	os=${platform%/*} arch=${platform#*/}
	echo "building rowkeeper for $platform"
	GOWORK='' CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -ldflags "$ldflags" -o "bin/image/$os-$arch/" ./cmd/rowkeeper
done
for platform in "${platforms[@]}"; do
	os=${platform%/*} arch=${platform#*/}
	dir=$work/$os-$arch
	mkdir "$dir"
	cp bin/image/"$os-$arch"/rowkeeper* LICENSE docs/CHANGELOG.md "$dir/"
	# What runs the program on a machine, and watches it there, lies where it does in the sources.
	[ $os != linux ] || cp --parents -r deploy/systemd deploy/dashboard.json deploy/components/prometheus/rules.yaml "$dir/"
	pack "rowkeeper_${version}_${os}_$arch.tar.gz" "$dir"
done

# The bill of materials is that of one program: those of the others differ in modules for their operating systems only.
go run -C hack/release . -version "$version" "$PWD/bin/image/linux-amd64/rowkeeper" >"$out/rowkeeper_${version}_sbom.cdx.json"

# One replica on SQLite, which makes its own certificate: all that needs no file of the user's.
cp -r deploy "$work/deploy"
overlay=$work/deploy/overlays/sqlite
sed -i 's|- \.\./\.\./components/certs\b.*|- ../../components/own-certificate|' "$overlay/kustomization.yaml"
cat >>"$overlay/kustomization.yaml" <<EOF
images:
- name: ghcr.io/rowkeeper/rowkeeper
  newTag: ${tag%@*}
  digest: ${tag#*@}
EOF
go run -C hack/tools/kubectl . kustomize "$overlay" >"$out/install.yaml"
grep -q "image: ghcr.io/rowkeeper/rowkeeper:$tag\$" "$out/install.yaml"

# A chart's version has no v.
go build -C hack/tools/helm -o "$work/helm" helm.sh/helm/v4/cmd/helm
chart=${version#v}
[[ $chart =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || chart=0.0.0+$chart
cp -rL deploy/chart "$work/chart"
sed -i "s|^  tag: \"\"\$|  tag: $tag|" "$work/chart/values.yaml"
grep -q "tag: $tag\$" "$work/chart/values.yaml"
"$work/helm" package "$work/chart" --version "$chart" --app-version "${version//+/-}" --destination $out

(cd $out && sha256sum -- * >SHA256SUMS)
ls -l $out
