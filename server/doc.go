// Package server is hearth's HTTP front end: the gin engine with its middleware (request ids, access log, recovery,
// body limit, API keys, CORS, host check), the listeners and their graceful shutdown. What is behind the routes lives in
// server/openai and server/native; what they share in server/api.
//
// cmd/hearth makes one Server and calls Serve. A Server's methods may be called from any goroutine.
package server
