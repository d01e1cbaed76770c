// Package proxies runs calls through nginx and Caddy: over WebSocket and over plain HTTP,
// with TLS that ends at the proxy, and while the proxy restarts, reloads or closes
// connections. The proxies are also asked which protocol they speak.
//
//	make proxies
//
// nginx.conf and Caddyfile are what docs/browser.md recommends. The tests change only their
// addresses, certificates and, for some, one line.
package proxies
