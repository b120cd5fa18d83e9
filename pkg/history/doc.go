// Package history is for authors of API servers whose objects package storage keeps. [Serve] gives
// every resource the subresource history: the states that the log still has of an object, and who
// changed what. Package v1alpha1 has the type of the answers.
//
//	GET /apis/GROUP/VERSION/namespaces/NS/RESOURCE/NAME/history
//	GET /apis/GROUP/VERSION/namespaces/NS/RESOURCE/NAME/history?at=T
//	GET /apis/GROUP/VERSION/[namespaces/NS/]RESOURCE/-/history?since=T&until=T
//
// The first has the changes of one object, the newest first. The second has the one that was in
// force at T, and is answered by 404 with the cause NoState if there was no object. The third has
// the changes of all objects, after since and not after until. limit is how many changes a page has
// at most, and continue the token of the page before. T is a revision, a time as in RFC 3339, or a
// duration back from now such as 10m, both by the database's clock. The objects of the third come
// with objects=true only. Resources of the core group are below /api/v1. An object with the name
// "-", which few resources allow, has no history of its own. A resource that no storage of ours has
// answers itself, by its own subresource history or by 404. A server puts four histories together
// at a time, and others wait.
//
// # What always holds
//
//   - A history is never false. Its changes follow each other without gaps. It ends at a creation,
//     or where compaction has removed what was before. See package mvcc.
//   - An object is read as any other: the registry of its resource decrypts, decodes and converts
//     it into the version of the request. Custom resources and aggregated servers are no exception.
//     A state whose version is served no more is shown as it is stored.
//   - A request without the parameter history costs nothing, and no write does.
//
// # Who may read it
//
// Requests pass the server's chain: authentication, audit, flow control and authorization. By then,
// the user may get RESOURCE/history. This package asks the authorizer for the rest:
//
//	the history of an object       get RESOURCE/history and get RESOURCE, with the object's name
//	the changes of all objects     get RESOURCE/history without a name, and list RESOURCE
//	earlier objects                get RESOURCE/earlierhistory besides
//
// An earlier object had the name before the one that has it now, or before it was deleted: the
// Secret of an earlier owner, or what somebody has deleted on purpose. Its changes are left out
// without that right, and the answer says that there are some. There is no path earlierhistory. The
// states of an object that exists need no right but those to read it: whoever may read a Secret
// and its history sees its earlier contents, too.
//
// Whoever may read a history sees who has made its changes: the names of users and the IDs of their
// requests in the audit log, of the resources for which the server records them (see
// storage.Config.Users). There is no right of its own for that.
//
// The audit log has these requests, and never the objects of their answers.
//
// The subresource is in no list of discovery and in no OpenAPI document.
package history
