package bookshop

import (
	"net/http"
	"sync"
)

var book = Book{
	Title: "Twenty Thousand Leagues Under the Seas", Author: "Jules Verne", Year: 1870, Publisher: "Pierre-Jules Hetzel",
	Blurb: "A hunt for a sea monster ends aboard the submarine of a captain who has done with the land.",
}

var reviews = []Review{
	{Reviewer: "Ned", Text: "Too much fish, too little dinner. Could not put it down all the same."},
	{Reviewer: "Conseil", Text: "Every creature in its proper class and order. A model of a book."},
}

var ratings = map[string]int{"Ned": 3, "Conseil": 5}

// starColours maps a version of reviews to the colour of its stars. Version v1 shows no stars and does not call ratings.
var starColours = map[string]string{"v2": "black", "v3": "red"}

// routePage adds the path of the page service, which is the only service for browsers. It calls details and reviews
// concurrently.
func (s *Server) routePage(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		a := s.newAnswer(r)
		calls := make([]Call, 2)
		var pending sync.WaitGroup
		pending.Go(func() { calls[0] = s.callUpstream(r, "details", "/details/1") })
		pending.Go(func() { calls[1] = s.callUpstream(r, "reviews", "/reviews/1") })
		pending.Wait()
		a.Upstreams = calls
		if c := a.Upstream("details"); c.OK() {
			a.Book = c.Answer.Book
		}
		if c := a.Upstream("reviews"); c.OK() {
			a.Reviews, a.Stars = c.Answer.Reviews, c.Answer.Stars
		}
		s.writeAnswer(w, r, a)
	})
}

func (s *Server) routeDetails(mux *http.ServeMux) {
	mux.HandleFunc("GET /details/{id}", func(w http.ResponseWriter, r *http.Request) {
		a := s.newAnswer(r)
		a.Book = &book
		s.writeAnswer(w, r, a)
	})
}

func (s *Server) routeReviews(mux *http.ServeMux) {
	mux.HandleFunc("GET /reviews/{id}", func(w http.ResponseWriter, r *http.Request) {
		a := s.newAnswer(r)
		a.Reviews = append(a.Reviews, reviews...)
		if colour, ok := starColours[s.config.Version]; ok {
			c := s.callUpstream(r, "ratings", "/ratings/"+r.PathValue("id"))
			a.Upstreams = []Call{c}
			if c.OK() {
				a.Stars = colour
				addStars(a.Reviews, c.Answer.Ratings)
			}
		}
		s.writeAnswer(w, r, a)
	})
}

func addStars(reviews []Review, stars map[string]int) {
	for i := range reviews {
		reviews[i].Stars = stars[reviews[i].Reviewer]
	}
}

func (s *Server) routeRatings(mux *http.ServeMux) {
	mux.HandleFunc("GET /ratings/{id}", func(w http.ResponseWriter, r *http.Request) {
		a := s.newAnswer(r)
		a.Ratings = ratings
		s.writeAnswer(w, r, a)
	})
}

// routeCrawler adds the path of the crawler service, which may call only some services. /visit calls the same services
// as the page, and reports which of them allowed the call.
func (s *Server) routeCrawler(mux *http.ServeMux) {
	mux.HandleFunc("GET /visit", func(w http.ResponseWriter, r *http.Request) {
		a := s.newAnswer(r)
		a.Upstreams = []Call{s.callUpstream(r, "details", "/details/1"), s.callUpstream(r, "reviews", "/reviews/1")}
		s.writeAnswer(w, r, a)
	})
}
