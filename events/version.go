package events

// payload is a Data that has a codec.
type payload interface {
	Data
	appendJSON(b []byte) ([]byte, error)
	readJSON(p *parser)
}

// form is one version of one event type.
type form struct {
	fresh func() payload
	// up makes the next version of a payload of this one. It is pure: it may
	// fill in only what the older version implies. nil: this is the newest.
	up func(payload) payload
}

// forms holds every version of every event type that was ever written. A type
// whose payload changes in more than additions gets a new version: the struct
// and its form stay under the old type with an upcaster, and the newest struct
// is what the rest of the program sees. What is stored is never rewritten.
var forms = map[Type]form{
	TypeAdmitted:         {fresh: func() payload { return new(RequestAdmitted) }},
	TypeRejected:         {fresh: func() payload { return new(RequestRejected) }},
	TypePrefilled:        {fresh: func() payload { return new(RequestPrefilled) }},
	TypeTransferGranted:  {fresh: func() payload { return new(TransferGranted) }},
	TypeTransferred:      {fresh: func() payload { return new(RequestTransferred) }},
	TypeDecoded:          {fresh: func() payload { return new(RequestDecoded) }},
	TypeFailed:           {fresh: func() payload { return new(RequestFailed) }},
	TypeCancelled:        {fresh: func() payload { return new(RequestCancelled) }},
	TypeReleased:         {fresh: func() payload { return new(RequestReleased) }},
	TypeDenied:           {fresh: func() payload { return new(CommandDenied) }},
	TypeWorkerJoined:     {fresh: func() payload { return new(WorkerJoined) }},
	TypeWorkerLeft:       {fresh: func() payload { return new(WorkerLeft) }},
	TypeModelQuarantined: {fresh: func() payload { return new(ModelQuarantined) }},
	TypeModelRestored:    {fresh: func() payload { return new(ModelRestored) }},
	TypeTenantErased:     {fresh: func() payload { return new(TenantErased) }},
	TypeCanaryRan:        {fresh: func() payload { return new(CanaryRan) }},
	TypeTenantNotified:   {fresh: func() payload { return new(TenantNotified) }},
	TypeAuditRead:        {fresh: func() payload { return new(AuditRead) }},
	TypeLogTrimmed:       {fresh: func() payload { return new(LogTrimmed) }},
}

// upcast carries d through the versions after its own to the newest.
func upcast(forms map[Type]form, d payload) payload {
	for {
		up := forms[d.EventType()].up
		if up == nil {
			return d
		}
		d = up(d)
	}
}
