package doctor

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
)

// Handler serves reports as JSON (GET /api/doctor). It answers loopback clients alone: a report tells more about the
// machine than a client on the network should know. One report is made at a time; run's context ends with the request.
func Handler(run func(ctx context.Context) (Report, error)) http.Handler {
	turn := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !loopback(req.RemoteAddr) || forwarded(req.Header) {
			http.Error(w, `{"error":{"message":"the doctor answers on loopback only","type":"forbidden"}}`, http.StatusForbidden)
			return
		}
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-req.Context().Done():
			return
		}
		report, err := run(req.Context())
		if req.Context().Err() != nil {
			return
		}
		if err != nil {
			http.Error(w, `{"error":{"message":"the doctor cannot look at this machine, see the log or run hearth doctor","type":"server_error"}}`, http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(report) // the client may be gone
	})
}

// forwarded says that a proxy on this machine speaks for someone else.
func forwarded(h http.Header) bool {
	return h.Get("X-Forwarded-For") != "" || h.Get("Forwarded") != "" || h.Get("X-Real-Ip") != ""
}

func loopback(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
