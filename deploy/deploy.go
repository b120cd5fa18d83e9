// Package deploy embeds the manifests of this directory: `rowkeeper init` writes the same ones for
// other servers.
package deploy

import "embed"

// Manifests are named one by one, because keys, certificates and passwords may lie beside them.
// Those of etcd's API are for the program rowkeeper alone.
//
//go:embed base/cluster/*.yaml base/server/*.yaml components/*/*.yaml overlays/external/*.yaml
//go:embed overlays/mysql/*.yaml overlays/postgres/*.yaml overlays/sqlite/*.yaml
//go:embed overlays/mysql/database/url overlays/postgres/database/url
var Manifests embed.FS
