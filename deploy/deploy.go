// Package deploy embeds the manifests of this directory: `rowkeeper init` writes the same ones for
// other servers.
package deploy

import "embed"

// Manifests are named one by one, because keys, certificates and passwords may lie beside them.
//
//go:embed base/*/*.yaml components/*/*.yaml overlays/*/*.yaml overlays/*/database/url
var Manifests embed.FS
