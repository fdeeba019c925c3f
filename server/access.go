package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"hearth/server/api"
)

// keyHash stands for an API key, so that the comparison takes the same time for keys of all lengths.
type keyHash [sha256.Size]byte

func hashKeys(keys []string) []keyHash {
	var out []keyHash
	for _, k := range keys {
		out = append(out, sha256.Sum256([]byte(k)))
	}
	return out
}

// checkKey asks for an API key when any are configured. Probes and preflights need none.
func (s *Server) checkKey(c *gin.Context) {
	if len(s.keys) == 0 {
		return
	}
	switch strings.TrimPrefix(c.Request.URL.Path, "/v1") {
	case "/health", "/ready":
		return
	}
	given := c.GetHeader("X-Api-Key")
	if auth := c.GetHeader("Authorization"); len(auth) > len("Bearer ") && strings.EqualFold(auth[:len("Bearer ")], "Bearer ") {
		given = strings.TrimSpace(auth[len("Bearer "):])
	}
	hash := keyHash(sha256.Sum256([]byte(given)))
	match := 0
	for i := range s.keys {
		match |= subtle.ConstantTimeCompare(hash[:], s.keys[i][:])
	}
	if match == 0 {
		message := "the API key is wrong"
		if given == "" {
			message = "an API key is needed: Authorization: Bearer KEY"
		}
		s.reject(c, &api.Error{Status: http.StatusUnauthorized, Type: api.TypeInvalidRequest, Code: "invalid_api_key", Kind: "unauthorized", Message: message})
		return
	}
	api.RequestFrom(c.Request.Context()).Tenant = hex.EncodeToString(hash[:8])
}

// checkOrigin answers preflights and keeps pages of other origins from using the server through their visitors'
// browsers. Clients that are no browsers send no Origin.
func (s *Server) checkOrigin(c *gin.Context) {
	origin := c.GetHeader("Origin")
	if origin == "" {
		return
	}
	h := c.Writer.Header()
	h.Add("Vary", "Origin")
	preflight := c.Request.Method == http.MethodOptions && c.GetHeader("Access-Control-Request-Method") != ""
	switch {
	case s.originListed(origin):
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After, Openai-Processing-Ms, X-Hearth-Backend, X-Hearth-Device, X-Hearth-Fallback")
		if preflight {
			h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS")
			h.Set("Access-Control-Allow-Headers", c.GetHeader("Access-Control-Request-Headers"))
			h.Set("Access-Control-Max-Age", "600")
			c.AbortWithStatus(http.StatusNoContent)
		}
	case sameOrigin(origin, c.Request.Host):
	case preflight || c.Request.Method != http.MethodGet && c.Request.Method != http.MethodHead:
		s.reject(c, forbidden("origin_not_allowed", "pages of origin "+origin+" may not use this server", "add the origin to server.cors_origins"))
	}
}

func (s *Server) originListed(origin string) bool {
	return slices.ContainsFunc(s.cfg.CORSOrigins, func(o string) bool {
		return o == "*" || strings.EqualFold(strings.TrimSuffix(o, "/"), origin)
	})
}

func sameOrigin(origin, host string) bool {
	_, rest, ok := strings.Cut(origin, "://")
	return ok && strings.EqualFold(rest, host)
}

// checkHost refuses requests that reach a loopback address under a foreign name: that is how a web page that has
// rebound its own name to 127.0.0.1 looks, and to the browser it would be of the same origin.
func (s *Server) checkHost(c *gin.Context) {
	local, ok := c.Request.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok || !local.IP.IsLoopback() {
		return
	}
	host := c.Request.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return
	}
	if ip := net.ParseIP(host); ip != nil {
		return // an address cannot be rebound
	}
	for _, allowed := range s.cfg.AllowedHosts {
		if allowed == "*" || strings.EqualFold(allowed, host) {
			return
		}
	}
	s.reject(c, forbidden("host_not_allowed", "this server does not answer to the name "+host, "add the name to server.allowed_hosts"))
}
