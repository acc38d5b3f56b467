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

// starsOf says in which colour a version of reviews shows stars; v1 shows none, and asks nobody for them.
var starsOf = map[string]string{"v2": "black", "v3": "red"}

// routePage adds the page, the only service that answers browsers. It asks details and reviews at the same time.
func (s *Server) routePage(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		a := s.answer(r)
		calls := make([]Call, 2)
		var asked sync.WaitGroup
		asked.Go(func() { calls[0] = s.call(r, "details", "/details/1") })
		asked.Go(func() { calls[1] = s.call(r, "reviews", "/reviews/1") })
		asked.Wait()
		a.Upstreams = calls
		if c := a.Upstream("details"); c.OK() {
			a.Book = c.Answer.Book
		}
		if c := a.Upstream("reviews"); c.OK() {
			a.Reviews, a.Stars = c.Answer.Reviews, c.Answer.Stars
		}
		s.write(w, r, a)
	})
}

func (s *Server) routeDetails(mux *http.ServeMux) {
	mux.HandleFunc("GET /details/{id}", func(w http.ResponseWriter, r *http.Request) {
		a := s.answer(r)
		a.Book = &book
		s.write(w, r, a)
	})
}

func (s *Server) routeReviews(mux *http.ServeMux) {
	mux.HandleFunc("GET /reviews/{id}", func(w http.ResponseWriter, r *http.Request) {
		a := s.answer(r)
		a.Reviews = append(a.Reviews, reviews...)
		if colour, ok := starsOf[s.config.Version]; ok {
			c := s.call(r, "ratings", "/ratings/"+r.PathValue("id"))
			a.Upstreams = []Call{c}
			if c.OK() {
				a.Stars = colour
				addStars(a.Reviews, c.Answer.Ratings)
			}
		}
		s.write(w, r, a)
	})
}

func addStars(reviews []Review, stars map[string]int) {
	for i := range reviews {
		reviews[i].Stars = stars[reviews[i].Reviewer]
	}
}

func (s *Server) routeRatings(mux *http.ServeMux) {
	mux.HandleFunc("GET /ratings/{id}", func(w http.ResponseWriter, r *http.Request) {
		a := s.answer(r)
		a.Ratings = ratings
		s.write(w, r, a)
	})
}

// routeCrawler adds a visitor of another house, who may read some of the shop: on /visit it asks both services that the
// page asks, and reports which let it in.
func (s *Server) routeCrawler(mux *http.ServeMux) {
	mux.HandleFunc("GET /visit", func(w http.ResponseWriter, r *http.Request) {
		a := s.answer(r)
		a.Upstreams = []Call{s.call(r, "details", "/details/1"), s.call(r, "reviews", "/reviews/1")}
		s.write(w, r, a)
	})
}
