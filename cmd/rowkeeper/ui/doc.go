// Package ui serves the page of "rowkeeper ui": the timeline of an object, and pictures of the
// server. It also forwards what the page asks to the server that a kubeconfig names, with the
// kubeconfig's credentials. It is a proxy as "kubectl proxy" is one, for one page.
//
// Whoever can use the proxy has the rights of its user. These threats are held off:
//
//   - Somebody on the network connects. The listener has an address of the loopback, and [Listen]
//     refuses every other one.
//   - Another user of the machine connects. Every request to the server needs a session. A session
//     begins with a token, which the terminal of the user shows, and which is valid once. It stands
//     behind the # of the URL, so that no request line, log or Referer has it.
//   - A program at another port of the loopback gets the cookie: browsers send cookies to all ports
//     of a host. The cookie alone is worth nothing. Every request also needs a key in a header. The
//     page keeps the key in the storage of its origin, which no other port can read. The cookie
//     is HttpOnly, so that a script in the page cannot hand on both.
//   - Another site makes the browser ask. A cookie with SameSite=Strict is not sent, the key's
//     header cannot be set, and a request with a foreign Origin or Sec-Fetch-Site is refused.
//   - Another site makes its own name mean the loopback (DNS rebinding). A request with a foreign
//     Host is refused.
//   - Content of an object is run as a script. The content security policy allows scripts and
//     styles from files of this package alone, and nothing that turns text into markup.
//   - A site lays the page under its own (clickjacking). No site can show it in a frame.
//   - A copy of the data stays behind in the browser. No answer is stored.
//   - The credentials reach the browser. The transport of client-go adds them to the request to the
//     server. Of the server's answers only the headers that the page reads are handed on.
//   - The page, or a fault in it, does more than it shows. The proxy reads objects, history,
//     discovery and metrics, writes an object as an undo does, and asks what the user may do. It
//     deletes nothing, and reaches no other subresource: no exec, no proxy, no token.
//
// The page does not protect from programs that run as the same user. They can read the kubeconfig.
//
// The folder web has the source of the page, and dist what "make ui" makes of it. dist is embedded,
// so that the program is compiled without Node.js. hack/verify/ui.sh checks that dist is what web
// makes.
package ui
