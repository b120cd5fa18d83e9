// Package testkit is for authors of API servers and of their clients. It runs API servers inside
// tests, as net/http/httptest runs HTTP servers: one call starts the server in the process of the
// test, on a SQLite database of its own or one that package databases gives, and it stops with the
// test. The kit composes its servers itself, without package server, of packages options,
// garbagecollector, access and standalone.
//
//	func TestFlunders(t *testing.T) {
//		server := testkit.Start(t, testkit.API{
//			Scheme: apiserver.Scheme,
//			Codecs: apiserver.Codecs,
//			OpenAPI: openapi.GetOpenAPIDefinitions,
//			New: func(c *genericapiserver.RecommendedConfig) (*genericapiserver.GenericAPIServer, error) {
//				s, err := (&apiserver.Config{GenericConfig: c}).Complete().New()
//				if err != nil {
//					return nil, err
//				}
//				return s.GenericAPIServer, nil
//			},
//		}, testkit.Options{})
//		client := versioned.NewForConfigOrDie(server.Config)
//		…
//	}
//
// Programs without a test at hand, such as TestMain, a suite of Ginkgo or a demonstration, call
// [Launch], which returns an error, and [Instance.Stop].
//
// Nothing else is needed: no etcd, no binaries, no ports that are agreed upon, no cluster. Any
// number of servers run side by side.
//
// # Databases
//
// The database is a SQLite file in a temporary directory by default, or SQLite in memory. Every
// other one is named by its URL, together with its driver; package containers starts PostgreSQL,
// MySQL and MariaDB in containers. Below a database that is shared, each server has a prefix of its
// own, whose objects are deleted when it stops.
//
// # Between tests
//
// To start a server takes some milliseconds, so that a server for each test is the simplest. Where
// tests share one, [Server.Snapshot] and [Server.Rollback] bring its objects back. A rollback is
// made of ordinary writes: objects that were created are deleted, others get back what they were,
// in new revisions. Revisions never go backwards, since clients and caches rely on that; so the
// watches and informers of the tests see what happens, and go on. An object's UID, creation time
// and content are restored, its resourceVersion is another one.
//
// # Users
//
// [Server.Config] is the administrator's, in the group system:masters. [Server.ConfigFor] makes
// further users, with the rights that are given to it as rules of RBAC, or with the rights that an
// authorizer of the author's own gives them.
//
// # Garbage
//
// With [Options.GarbageCollection], objects whose owners are gone are deleted, as in a cluster.
//
// # Time
//
// With [Options.FakeClock], objects with a time to live expire when the test says so, by
// [Server.Advance]. Times in objects are the API machinery's and go on as usual.
package testkit
