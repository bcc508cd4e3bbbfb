package lifecycle

import "github.com/pdgate/pdgate/events"

// tenantKey is the fingerprint of the key that this replica would use for the
// admission. One that differs from the gateway's may have come or gone a moment
// ago, so it is looked at again before an admission is refused for it.
func (s *Service) tenantKey(a *events.Admit) string {
	own := s.keys.Of(a.Tenant).Fingerprint
	if own != a.TenantKey && s.keys.Tenants != nil {
		s.keys.Tenants.Refresh()
		own = s.keys.Of(a.Tenant).Fingerprint
	}
	return own
}

// forgetKeys drops keys of which the log says that they are erased: by tenant,
// their fingerprints. Their files may still be there.
func (s *Service) forgetKeys(erased map[string][]string) {
	if s.keys.Tenants == nil {
		return
	}
	for tenant, keys := range erased {
		for _, k := range keys {
			s.keys.Tenants.Forget(tenant, k)
		}
	}
}
